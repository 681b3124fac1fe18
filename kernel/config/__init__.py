"""The typed configuration: values, sections, and the sources that they come from."""
