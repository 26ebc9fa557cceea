"""What decides: values in, values out, told the time. No I/O, no clock, no chance."""
