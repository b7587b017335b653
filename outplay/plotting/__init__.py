"""Figures and pages of runs without a browser: `outplay plot` and `outplay report`; charts as SVG for all pages."""
