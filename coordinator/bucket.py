"""A token bucket: so much a second, and so much at once after a pause."""


class Bucket:
    """Time is handed in, in seconds of any clock that does not run backwards."""

    def __init__(self, rate: float, most: float, now: float) -> None:
        self.rate = rate
        self.most = most
        self._tokens = most
        self._at = now

    def take(self, cost: float, now: float) -> float:
        """Take this, which is always given, and may be a debt; the seconds until it is paid (0: there was enough)."""
        self._tokens = min(self.most, self._tokens + max(0.0, now - self._at) * self.rate) - cost
        self._at = max(now, self._at)
        return max(0.0, -self._tokens / self.rate)

    def debt(self, now: float) -> float:
        """The seconds until what was taken is paid."""
        return self.take(0, now)

    def full(self, now: float) -> bool:
        """Whether it is as if nothing had ever been taken."""
        self.take(0, now)
        return self._tokens >= self.most
