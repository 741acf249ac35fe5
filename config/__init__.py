"""Configuration: every key once, merged from file and command line, validated and frozen."""

from config.compare import check_resumable, list_differences
from config.load import load_config, merge_settings, stored_config, warn_about_unused
from config.schema import ConfigError, between, get_cfg, one_of, register_key

__all__ = [
    "ConfigError",
    "between",
    "check_resumable",
    "get_cfg",
    "list_differences",
    "load_config",
    "merge_settings",
    "one_of",
    "register_key",
    "stored_config",
    "warn_about_unused",
]
