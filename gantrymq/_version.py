"""The version of the distribution, read by the build and by the banner."""

__version__ = "0.1.0"
