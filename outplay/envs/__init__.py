"""Environments: finding them by name, and stepping them in EnvGroups."""

from __future__ import annotations

from outplay.envs.group import EnvGroup, GroupState
from outplay.envs.lookup import (
    EnvSpec,
    check_trust,
    env_name,
    find_env,
    import_folders,
    import_path,
    is_import_path,
    register_env,
)
from outplay.envs.making import has_native_vector, make_vector
from outplay.envs.probe import Probe, probe_env
from outplay.envs.vector import PythonVector, Vector

__all__ = [
    "EnvGroup",
    "EnvSpec",
    "GroupState",
    "Probe",
    "PythonVector",
    "Vector",
    "check_trust",
    "env_name",
    "find_env",
    "has_native_vector",
    "import_folders",
    "import_path",
    "is_import_path",
    "make_vector",
    "probe_env",
    "register_env",
]
