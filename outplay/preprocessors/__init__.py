"""Preprocessors: fitted to data, then applied to data and to the observations of agents.

>>> from outplay import preprocessors
>>> scaler = preprocessors.StandardScaler(["height"])
>>> scaler.fit_transform({"height": np.array([1.0, 3.0])})
{'height': array([-1.,  1.])}
"""

from outplay.preprocessors.base import Preprocessor
from outplay.preprocessors.compose import ByKey, Chain
from outplay.preprocessors.encoders import LabelEncoder, OneHotEncoder, OrdinalEncoder
from outplay.preprocessors.files import from_dict, load
from outplay.preprocessors.frames import Crop, Grayscale, Rescale, Resize
from outplay.preprocessors.imputer import SimpleImputer
from outplay.preprocessors.scalers import MinMaxScaler, StandardScaler

__all__ = [
    "ByKey",
    "Chain",
    "Crop",
    "Grayscale",
    "LabelEncoder",
    "MinMaxScaler",
    "OneHotEncoder",
    "OrdinalEncoder",
    "Preprocessor",
    "Rescale",
    "Resize",
    "SimpleImputer",
    "StandardScaler",
    "from_dict",
    "load",
]
