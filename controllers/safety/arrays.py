"""Names for the kinds of array that the safety kernels take; C-contiguous throughout."""

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Mask = NDArray[np.bool_]
Index = NDArray[np.int64]
