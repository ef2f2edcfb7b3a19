"""The sentences about the stages of a pipeline: waits, releases and counted bytes."""

from __future__ import annotations

STAGE_SENTENCES = {
    "LastWaitedFor": (
        ". The thread last waited for a load on {}{}: if the read is meant for that stage, correct "
        "the index, or the pointer to an earlier stage"
    ),
    "EndedEarly": (
        "{} completed phase {} with {} bytes expected, and its copies deliver {}. Expect the bytes "
        "of all of them"
    ),
    "LoadPassedAtFirst": "the data may not have landed{}",
    "StaleStage": (
        "before this access {} last waited on {}, and {} counts the loads into these bytes. Wait "
        "on {} first; if the access is meant for the stage of {}, correct the index, or the "
        "pointer to an earlier stage"
    ),
    "RepeatedWait": (
        "the wait of {} on {} ended with phase {}, as its wait before did. Wait for the next "
        "phase: step the state once for each stage"
    ),
    "NeverReleased": (
        "no phase of {} had completed, for which the load must wait: the wait of {} names parity "
        "1, which a new barrier lets pass, for a stage that is filled already. Wait for the next "
        "phase: step the state once for each stage"
    ),
    "ReleasedFirst": (
        "{} had arrived on {}{} before this access. Arrive after the last access to the stage; if "
        "one lane arrives for its warp, call __syncwarp() first"
    ),
    "NotReleased": (
        "the load waited on {}{}, whose phase {} completed by the arrivals of {}; {} had not "
        "arrived. Let every reader arrive on it after its last access, or synchronise with the "
        "thread that does; init() counts {} arrivals"
    ),
    "NobodyReleased": (
        "the load waited on {}{}, whose phase {} completed by the arrivals of {}; no thread of CTA "
        "{}, into which it loads too, had arrived. Let the readers of every CTA that a load writes "
        "arrive on it, with arrive_cluster({}); init() counts {} arrivals"
    ),
    "TooFewCounted": (
        "the load waited on {}{}, which completes a phase after {} arrivals, as init() counts, and "
        "{} threads arrive on it. Let init() count all that arrive in a phase"
    ),
    "NeverReleasedBy": (
        "the load waited on {}{}, and no thread of CTA {}, into which it loads too, arrives on it. "
        "Let the readers of every CTA that a load writes arrive on it, with arrive_cluster({}); "
        "init() counts {} arrivals"
    ),
    "FilledAgain": (
        "{} gets {} in phase {}, which counts {} and waits for no more: its {} bytes have yet to "
        "land; {}"
    ),
    "ReleasedUnfilled": (
        "the thread has waited on {}{}, whose phase {} completed by the arrivals of {}, and none "
        "of them waited for this phase of {}. Let each wait for every phase, and arrive then"
    ),
    "WarpsOfCta": "{}{}",
}
