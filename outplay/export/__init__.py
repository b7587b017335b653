"""Export: a trained policy as a file that acts without Outplay. ONNX, torch.export or safetensors."""

from __future__ import annotations

from outplay.export.exporting import Exported, checked_format, export_policy
from outplay.export.module import PolicyModule
from outplay.export.verifying import Verified

__all__ = ["Exported", "PolicyModule", "Verified", "checked_format", "export_policy"]
