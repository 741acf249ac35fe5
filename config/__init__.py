"""Configuration: every key once, merged from file and command line, validated and frozen."""

from config.compare import check_resumable
from config.defaults import get_cfg, register_key
from config.load import load_config
from config.validate import ConfigError, warn_about_unused

__all__ = ["ConfigError", "check_resumable", "get_cfg", "load_config", "register_key", "warn_about_unused"]
