"""Measurements that took turns, compared in pairs."""

import random
import statistics


def compared(side, first):
    """The median of the pairs' ratios, `side` over `first`, and the interval in which it
    lies with 95 % confidence (bootstrap over pairs)."""
    ratios = [one / other for one, other in zip(side, first, strict=True)]
    source = random.Random(1)
    medians = sorted(statistics.median(source.choices(ratios, k=len(ratios))) for _ in range(2000))
    return statistics.median(ratios), (medians[50], medians[1949])
