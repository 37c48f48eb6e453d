"""Stand-ins for the outside world, for our tests and for those of users."""

from ggufcluster.testing.fake_remote import FakeRemote, StoredFile
from ggufcluster.testing.hub_server import Asked, Fault, HubServer

__all__ = ["Asked", "FakeRemote", "Fault", "HubServer", "StoredFile"]
