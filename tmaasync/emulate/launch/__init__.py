"""From a program and its arguments to a run, or to the runtime's report of why it failed.

`prepared` has the launch, `world` several devices; `report` turns a report into an exception.
"""
