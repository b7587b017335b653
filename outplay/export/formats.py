"""The formats: ONNX, torch.export and safetensors, as bytes of a file and a function that runs it."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import util
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outplay.errors import ExportError, shortened
from outplay.export.contract import BATCH
from outplay.export.module import PolicyModule
from outplay.policies import Policy

Array = np.ndarray
Runner = Callable[[dict[str, Array]], dict[str, Array]]

OPSET = 18  # of ONNX: that of torch's exporter; onnxruntime has it since 1.14
_LARGEST_ONNX = 2**31 - 2**20  # protobuf cannot hold more
_ROWS = 3  # of the traced batch: 0 and 1 would be taken for constants
_LOGGERS = ("torch", "torch.onnx", "torch.export", "torch.fx", "torch._dynamo", "onnxscript", "onnx_ir")


@contextmanager
def _silent() -> Iterator[None]:
    """Messages of the exporters are about their own parts: nothing of them reaches the user's terminal."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def traced(policy: Policy) -> tuple[PolicyModule, torch.export.ExportedProgram]:
    """The policy as a module, and its graph with a dynamic batch axis. Raises ExportError if torch cannot trace it."""
    module = PolicyModule(policy)
    # The strict mode of torch.export reads Python code: it knows numpy, and len() of a tensor.
    attempts = [(module, False)] + ([(PolicyModule(policy, in_numpy=True), True)] if module.custom_parts else [])
    problems = []
    for tried, is_strict in attempts:
        try:
            return tried, _program(tried, is_strict)
        except Exception as error:  # noqa: BLE001 - torch.export and a user's class may raise anything
            problems.append(error)
    what = module.custom_parts or f"this {type(policy).__name__}"
    reason = f"{type(problems[0]).__name__}: {_first_line(problems[0])}"
    raise ExportError(
        f"{what} cannot be exported, because torch.export cannot trace it ({reason}); "
        "write it with tensor operations whose shapes do not depend on values, or export .safetensors"
    ) from problems[0]


def _program(module: PolicyModule, is_strict: bool) -> torch.export.ExportedProgram:
    batch = torch.export.Dim(BATCH, min=1, max=2**30)
    inputs = module.examples(_ROWS)
    shapes = {name: {0: batch} for name in inputs}
    with _silent(), torch.no_grad():
        return torch.export.export(module, (inputs,), dynamic_shapes=(shapes,), strict=is_strict)


def onnx_bytes(module: PolicyModule, program: torch.export.ExportedProgram) -> bytes:
    """One ONNX file, weights included."""
    check_onnx_installed()
    with torch.no_grad():
        names = list(module(module.examples(_ROWS)))
    if 4 * sum(p.numel() for p in module.parameters()) > _LARGEST_ONNX:
        raise ExportError("the policy is larger than 2 GB, the limit of one ONNX file; export .pt2 or .safetensors")
    model = _onnx_model(program, list(module.inputs()), names)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = BATCH
    del model.graph.value_info[:]  # shapes of intermediate results name the axis otherwise
    del model.graph.metadata_props[:]
    for node in model.graph.node:  # lines of source files
        del node.metadata_props[:]
        node.doc_string = ""
    data: bytes = model.SerializeToString()
    return data


def _onnx_model(program: torch.export.ExportedProgram, inputs: list[str], outputs: list[str]) -> Any:
    try:
        with _silent(), torch.no_grad():
            made = torch.onnx.export(
                program,
                (),
                dynamo=True,
                verbose=False,
                input_names=inputs,
                output_names=outputs,
                opset_version=OPSET,
            )
            assert made is not None
            return made.model_proto
    except Exception as error:
        reason = f"{type(error).__name__}: {_first_line(error)}"
        raise ExportError(
            f"PyTorch {torch.__version__} cannot convert this policy to ONNX ({reason}); export .pt2 instead"
        ) from error


def _first_line(error: Exception) -> str:
    return shortened(" ".join(str(error).split("\n")[0].split()), 200)


def check_onnx_installed() -> None:
    if missing := [name for name in ("onnx", "onnxscript") if util.find_spec(name) is None]:
        raise ExportError(f"exporting ONNX needs {missing[0]}: pip install 'outplay[export]'")


def has_onnxruntime() -> bool:
    return util.find_spec("onnxruntime") is not None


def onnx_runner(data: bytes) -> Runner:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(None, inputs), strict=True))


def pt2_bytes(program: torch.export.ExportedProgram) -> bytes:
    buffer = io.BytesIO()
    with _silent():
        torch.export.save(program, buffer)
    return buffer.getvalue()


def pt2_runner(data: bytes) -> Runner:
    with _silent():
        module = torch.export.load(io.BytesIO(data)).module()
    return module_runner(module)


def module_runner(module: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Runner:
    @torch.inference_mode()
    def run(inputs: dict[str, Array]) -> dict[str, Array]:
        outputs = module({name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in inputs.items()})
        return {name: tensor.numpy() for name, tensor in outputs.items()}

    return run


def safetensors_bytes(policy: Policy, metadata: dict[str, Any]) -> bytes:
    """All weights by name, as `Policy.set_weights` takes them."""
    from safetensors.numpy import save

    weights = {name: np.array(array, order="C") for name, array in policy.get_weights().items()}
    return save(weights, {key: str(value) for key, value in metadata.items()})
