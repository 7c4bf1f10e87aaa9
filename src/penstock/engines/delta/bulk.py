"""Target of the bulk load: the part `bulk_target`."""

from functools import partial

from penstock.engines.delta.catalogue import FORMAT
from penstock.engines.lake.bulk import LakeBulk

OPEN = partial(LakeBulk, FORMAT)
