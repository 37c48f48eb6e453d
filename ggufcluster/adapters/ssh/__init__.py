"""Far machines over SSH; the only importer of paramiko.

Host keys are always checked, no agent is forwarded, no password is ever used, every wait is
bounded.
"""

from ggufcluster.adapters.ssh.remote import SshRemote, find_target

__all__ = ["SshRemote", "find_target"]
