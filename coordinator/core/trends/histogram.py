"""Histograms of endless streams (waits, run times) with a relative error of one percent.

Buckets of logarithmic width (DDSketch, Masson, Rim and Lee 2019): a value x > 0 counts in bucket ceil(log_g x) with
g = (1 + e) / (1 - e), and is answered as the bucket's middle, which errs by at most e."""

import math

ERROR = 0.01
_GAMMA = (1 + ERROR) / (1 - ERROR)
_LOG = math.log(_GAMMA)
LEAST, MOST = 1e-3, 1e9
"""Values below count as 0, those above as this: at most 1,400 buckets."""


class Histogram:
    """Counts of values by bucket."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._zeros = 0
        self.count = 0

    def add(self, value: float) -> None:
        """Count a value; one that is no number counts for nothing."""
        if math.isnan(value):
            return
        self.count += 1
        if value < LEAST:
            self._zeros += 1
        else:
            bucket = math.ceil(math.log(min(value, MOST)) / _LOG)
            self._counts[bucket] = self._counts.get(bucket, 0) + 1

    def quantile(self, part: float) -> float:
        """The smallest value such that this part of all is not above it; 0 without any."""
        rank = max(1, math.ceil(part * self.count)) - self._zeros
        if rank <= 0:
            return 0.0
        for bucket, count in sorted(self._counts.items()):
            rank -= count
            if rank <= 0:
                return float(2 * _GAMMA**bucket / (_GAMMA + 1))
        return 0.0
