"""Writes a policy to a file in one of the formats, with its contract beside it."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import outplay
from outplay.errors import ConfigError, nearest
from outplay.export import formats
from outplay.export.contract import contract
from outplay.export.module import PolicyModule
from outplay.export.verifying import OBSERVATIONS, Verified, verify
from outplay.files import sync_folder, write_file, writing
from outplay.policies import Policy

FORMATS = {".onnx": "onnx", ".pt2": "pt2", ".safetensors": "safetensors"}


@dataclass(frozen=True)
class Exported:
    """The files of an exported policy.

    `verified` says for how many random observations the file gave the policy's action, and `runtime` what ran it. Both
    are None for safetensors, and for ONNX without onnxruntime.
    """

    path: Path
    contract_path: Path
    format: str
    num_bytes: int
    contract: dict[str, Any]
    verified: Verified | None = None
    runtime: str | None = None


def checked_format(path: str | Path, format: str | None = None) -> tuple[Path, str]:  # noqa: A002 - as the option
    """(path, format) of a file to export to. Raises if the format is unknown or its folder does not exist."""
    path = Path(path).expanduser()
    suffix = path.suffix.lower()
    if format is None and suffix not in FORMATS:
        found = f"the suffix {suffix!r}" if suffix else "no suffix"
        raise ConfigError(
            f"{path} has {found}; .onnx, .pt2 and .safetensors are known, or choose with --format (format=)"
        )
    if format is not None and format not in FORMATS.values():
        raise ConfigError(f"--format: there is no format {format!r}{nearest(format, FORMATS.values())}")
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name a file, such as {path / 'policy.onnx'}")
    if not path.parent.is_dir():
        raise ConfigError(f"{path} cannot be written: the folder {path.parent} does not exist")
    chosen = format or FORMATS[suffix]
    if format is not None and FORMATS.get(suffix, format) != format:
        raise ConfigError(f"{path} has the suffix of {FORMATS[suffix]}, and the format is {format}; change one of them")
    if chosen == "onnx":
        formats.check_onnx_installed()
    return path, chosen


def export_policy(
    policy: Policy,
    path: str | Path,
    format: str | None = None,  # noqa: A002 - as the option
    about: Mapping[str, Any] | None = None,
) -> Exported:
    """Write a policy to `path`, and its contract to `path`.json. `about` becomes part of the contract.

    The file is checked against the policy before it gets its name. Existing files are replaced.

    >>> export_policy(trainer.get_policy(), "policy.onnx").verified
    Verified(observations=1000, equal=1000)
    """
    path, chosen = checked_format(path, format)
    details: dict[str, Any] = {}
    if chosen == "safetensors":
        module = PolicyModule(policy, in_numpy=True)
        data = formats.safetensors_bytes(policy, {"outplay_version": outplay.__version__, "format": "pt"})
        details["weights"] = "all weights of the network by name, as Policy.set_weights takes them"
        details["model"] = policy.spec.model.model_dump(mode="json")
    else:
        module, program = formats.traced(policy)
        verify(module, policy, formats.module_runner(module), OBSERVATIONS // 10)
        data = formats.onnx_bytes(module, program) if chosen == "onnx" else formats.pt2_bytes(program)
        details = {"opset": formats.OPSET} if chosen == "onnx" else {"torch_version": torch.__version__}
    verified, runtime = _verified(module, policy, chosen, data)
    stated = {
        "file": path.name,
        "format": chosen,
        "sha256": hashlib.sha256(data).hexdigest(),
        **details,
        "outplay_version": outplay.__version__,
        **(about or {}),
        **contract(module),
        "verified": None if verified is None else {**vars(verified), "runtime": runtime},
    }
    contract_path = path.with_name(f"{path.name}.json")
    _write({path: data, contract_path: f"{json.dumps(stated, indent=2, allow_nan=False)}\n".encode()})
    return Exported(path, contract_path, chosen, len(data), stated, verified, runtime)


def _verified(module: PolicyModule, policy: Policy, chosen: str, data: bytes) -> tuple[Verified | None, str | None]:
    if chosen == "pt2":
        return verify(module, policy, formats.pt2_runner(data)), f"torch {torch.__version__}"
    if chosen == "onnx" and formats.has_onnxruntime():
        import onnxruntime

        return verify(module, policy, formats.onnx_runner(data)), f"onnxruntime {onnxruntime.__version__}"
    return None, None


def _write(files: Mapping[Path, bytes]) -> None:
    """Write all files under other names first. The contract is renamed last: its hash says which file it describes."""
    parts = {path: path.with_name(f".{path.name}.part") for path in files}
    with writing(next(iter(files))):
        try:
            for path, data in files.items():
                write_file(parts[path], data)
            for path, part in parts.items():
                part.replace(path)
        except BaseException:
            for part in parts.values():
                with contextlib.suppress(OSError):  # on a read-only disk, unlink fails as well
                    part.unlink(missing_ok=True)
            raise
    sync_folder(next(iter(files)).parent)
