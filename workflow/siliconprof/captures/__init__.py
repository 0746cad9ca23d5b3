"""Plug-ins of this kind, one file each; see `siliconprof.plugins`."""
