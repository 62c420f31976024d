"""The version, where everybody can ask for it without loading anything else."""

__version__ = "0.1.0.dev0"
