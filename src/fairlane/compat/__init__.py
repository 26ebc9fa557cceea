"""Foreign dialects: the documents, variables and headers of other programs.

PinchTab, cool-workflow, BrowserOS and GoClaw each have a module. The rest of Fairlane calls these
functions and does not know the foreign names.
"""
