"""The typed configuration: values, sections and sources."""
