"""``longthink explore``: a page on which people watch a network think, and the server behind it.

command    longthink explore
server     the web application: static files, a catalogue, and a WebSocket for each view
messages   what a page may ask for, checked
shelf      which weights there are
problems   problems from what a page asks for, and what it needs to draw them
thoughts   a script (weights, problem, what happens at which step) becomes frames
frames     a frame as bytes
engine     a chess engine's opinion, where there is an engine
static/    the page: plain JavaScript, no build step
"""
