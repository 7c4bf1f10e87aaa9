"""Refusals of a target of any engine: one class for each condition.

The modules of an engine raise them, with the server's own words and statements in message and hint.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.model import PenstockError, Retry


class StagingFailed(PenstockError):
    """The target refused rows of a merge table."""

    code = "LD11"
    retry: ClassVar[Retry] = "never"


class StagingLost(PenstockError):
    """A worker's connection to the target broke."""

    code = "LD12"
    retry: ClassVar[Retry] = "backoff"


class StagingChanged(PenstockError):
    """A merge table does not hold the rows of this batch: lost in a crash, or a late worker's."""

    code = "LD13"
    retry: ClassVar[Retry] = "backoff"


class TargetTableMissing(PenstockError):
    """A captured table has no table in the target."""

    code = "TG01"


class ProgressUnwritable(PenstockError):
    """The schema wirekite or its tables cannot be created or written in the target."""

    code = "TG02"


class TargetFollowsAnotherLog(PenstockError):
    """The target's progress belongs to another change log than this pipeline's."""

    code = "TG03"


class AppliedByAnother(PenstockError):
    """Another process moved the applied position: two loaders are at work on one target."""

    code = "TG04"


class TargetShapeDiffers(PenstockError):
    """An existing table has other columns than the source's."""

    code = "TG10"


class TargetTypeMissing(PenstockError):
    """A column's type is not available in the target."""

    code = "TG11"


class TargetDdlFailed(PenstockError):
    """The target refused to create a schema, type, table, key or index."""

    code = "TG12"


class TargetSchemaMissing(PenstockError):
    """A schema is missing in the target and may not be created."""

    code = "TG13"


class ShapeNotApplicable(PenstockError):
    """A change of the source table's shape cannot be applied to the target."""

    code = "TG20"


class KeyNotInTarget(PenstockError):
    """The target table lacks a column that the log's rows have."""

    code = "TG21"


class ForeignKeyBlocked(PenstockError):
    """A foreign key of the target refuses the net change of a batch."""

    code = "TG30"


class UniqueBlocked(PenstockError):
    """A unique or exclusion constraint of the target refuses the net change of a batch."""

    code = "TG31"


class ValueRefused(PenstockError):
    """The target refuses a value: a check, a domain, a length, or NOT NULL."""

    code = "TG32"


class TargetRowMissing(PenstockError):
    """The target lacks rows that the log changes: another client writes there, or it drifted."""

    code = "TG33"


class TriggersWouldFire(PenstockError):
    """Triggers or rules of the target would act on rows that the source's have handled already."""

    code = "TG34"


class TruncateBlocked(PenstockError):
    """A table was truncated at the source, and in the target rows of other tables refer to it."""

    code = "TG35"


class ActionUnknown(PenstockError):
    """wirekite_action holds another word than RUN, PAUSE and STOP."""

    code = "CT40"


class TargetNotTransactional(PenstockError):
    """A target table has a storage engine that cannot roll a batch back."""

    code = "TG37"
