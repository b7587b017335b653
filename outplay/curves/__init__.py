"""Series of metrics as numpy arrays: downsampling, smoothing, and the inter-quartile mean of runs with a band.

Pure functions of numpy arrays: neither torch nor a run folder is needed.
"""

from outplay.curves.aggregation import Band, aggregated, bootstrap_band, iqm
from outplay.curves.downsampling import Buckets, Curve, downsampled
from outplay.curves.smoothing import smoothed

__all__ = ["Band", "Buckets", "Curve", "aggregated", "bootstrap_band", "downsampled", "iqm", "smoothed"]
