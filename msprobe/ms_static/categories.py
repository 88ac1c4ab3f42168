"""``summary_mode`` -> the words of MindSpore's ``statistic_category``."""

from __future__ import annotations

from msprobe.core.config_record import SummaryMode
from msprobe.ms_static.versions import HASH_IS_MD5_UNTIL, Version

_USUAL = ("max", "min", "avg", "l2norm")


def statistic_categories(mode: SummaryMode | tuple[str, ...], version: Version) -> list[str]:
    """Return the categories of a summary mode, in the order of the configuration.

    Parameters
    ----------
    mode : SummaryMode or tuple of str
        ``statistics``, ``md5``, or names of statistics.
    version : tuple of int
        The MindSpore that reads the file. Up to 2.7.0 its one hash is MD5, called ``md5``; later ``hash`` is SHA1 and
        MD5 is ``hash:md5``.
    """
    md5_only = version <= HASH_IS_MD5_UNTIL
    md5 = "md5" if md5_only else "hash:md5"
    if not isinstance(mode, tuple):
        return [md5] if mode is SummaryMode.MD5 else list(_USUAL)
    words = {"mean": "avg", "md5": md5, "hash": "md5" if md5_only else "hash"}
    return list(dict.fromkeys(words.get(name, name) for name in mode))


COLUMNS = {
    "max": "Max Value",
    "min": "Min Value",
    "avg": "Avg Value",
    "l2norm": "L2Norm Value",
    "count": "Count",
    "negative zero count": "Negative Zero Count",
    "positive zero count": "Positive Zero Count",
    "zero count": "Zero Count",
    "nan count": "NaN Count",
    "negative inf count": "Negative Inf Count",
    "positive inf count": "Positive Inf Count",
    "md5": "MD5",
    "hash:md5": "MD5",
    "hash": "SHA1",
    "hash:sha1": "SHA1",
}
"""Category -> column of statistic.csv."""
