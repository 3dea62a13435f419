"""A straight line through points, by running sums: O(1) for each point, whatever came before."""

LAMBDA = 0.5
"""Ridge penalty: with few points the slope is nearly 0."""
STEEPEST = 1.5
"""Maximum slope (of logarithms): needs grow at most with this power of the input, and never fall."""


class Line:
    """y = a + b x for each of some features x of which the one that explains most is used."""

    __slots__ = ("best", "count", "sums", "y")

    def __init__(self, features: int) -> None:
        self.count = 0
        self.y = 0.0
        self.sums = [[0.0, 0.0, 0.0] for _ in range(features)]
        self.best: tuple[float, int] | None = None
        """Cache of `_best`, valid until the next point."""

    def add(self, xs: tuple[float, ...], y: float) -> None:
        """One more point."""
        self.count += 1
        self.y += y
        self.best = None
        for sums, x in zip(self.sums, xs, strict=False):
            sums[0] += x
            sums[1] += x * x
            sums[2] += x * y

    def at(self, xs: tuple[float, ...]) -> tuple[float, int]:
        """The value of the line at these features, and the index of the feature it uses; -1: none explains anything."""
        slope, which = self._found()
        mean = self.y / self.count
        return (mean + slope * (xs[which] - self.sums[which][0] / self.count) if which >= 0 else mean), which

    @property
    def flat(self) -> bool:
        """Whether no feature explains anything, so that it says the mean of all points."""
        return self._found()[1] < 0

    def _found(self) -> tuple[float, int]:
        if self.best is None:
            self.best = self._best()
        return self.best

    def _best(self) -> tuple[float, int]:
        """The slope for the feature that explains most, and its index."""
        best, found, which = 0.0, 0.0, -1
        count, y = self.count, self.y
        for at, (sx, sxx, sxy) in enumerate(self.sums):
            vxy = sxy - sx * y / count
            if vxy > 0.0:
                vxx = sxx - sx * sx / count + LAMBDA
                slope = vxy / vxx
                if slope > STEEPEST:
                    slope = STEEPEST
                explained = slope * (2 * vxy - slope * vxx)
                if explained > best:
                    best, found, which = explained, slope, at
        return found, which

    def slope(self, at: int) -> float:
        """The slope for this feature alone; 0: y does not grow with it."""
        sx, sxx, sxy = self.sums[at]
        vxy = sxy - sx * self.y / self.count
        return min(STEEPEST, vxy / (sxx - sx * sx / self.count + LAMBDA)) if vxy > 0.0 else 0.0
