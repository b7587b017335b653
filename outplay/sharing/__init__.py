"""Sharing: model cards. Bundles are in `outplay/runs/bundles.py`, since runs read them."""
