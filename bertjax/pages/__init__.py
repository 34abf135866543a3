"""How a page of HTML is written that needs nothing else: its frame and its charts."""
