"""HTTP: the only package that imports httpx."""

from ggufcluster.adapters.http.api import Api, HttpApi, StreamingApi
from ggufcluster.adapters.http.ranges import RangeClient, RemoteFile, open_remote, read_range
from ggufcluster.adapters.http.small_files import fetch_small

__all__ = [
    "Api",
    "HttpApi",
    "RangeClient",
    "RemoteFile",
    "StreamingApi",
    "fetch_small",
    "open_remote",
    "read_range",
]
