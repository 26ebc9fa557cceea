"""Foreign dialects: the documents, variables and headers of other programs, and nothing else.

PinchTab, cool-workflow, BrowserOS and GoClaw each have a module. The other rooms call these
functions and do not know the spellings.
"""
