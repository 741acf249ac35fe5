"""Configuration: every key once, merged from file and command line, validated and frozen."""

from config.compare import check_resumable, list_differences
from config.defaults import get_cfg, register_key
from config.load import finish_config, load_config, merge_settings, stored_config
from config.validate import ConfigError, warn_about_unused

__all__ = [
    "ConfigError",
    "check_resumable",
    "finish_config",
    "get_cfg",
    "list_differences",
    "load_config",
    "merge_settings",
    "register_key",
    "stored_config",
    "warn_about_unused",
]
