"""Plans for copies between an array and shared memory: the fastest legal mechanism, explained."""

from tmaasync.copy_plan.factory import plan_copy
from tmaasync.copy_plan.mechanism import Mechanism, Refusal
from tmaasync.copy_plan.plan import CopyPair, CopyPlan

__all__ = ["CopyPair", "CopyPlan", "Mechanism", "Refusal", "plan_copy"]
