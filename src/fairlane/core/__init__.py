"""The pure core: values in, values out, told the time."""
