"""HTTP: the only package that imports httpx."""

from ggufcluster.adapters.http.api import Api, HttpApi
from ggufcluster.adapters.http.ranges import RangeClient, RemoteFile, open_remote, read_range

__all__ = ["Api", "HttpApi", "RangeClient", "RemoteFile", "open_remote", "read_range"]
