"""siliconprof: how fast does this machine train models, and why is it slower than that one?"""

__version__ = "0.1.0"
