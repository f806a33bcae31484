"""Whether data written with one schema can be read with another, by format, with every reason why not."""

from .check import Incompatibility, check_compatible, find_incompatibilities

__all__ = ["Incompatibility", "check_compatible", "find_incompatibilities"]
