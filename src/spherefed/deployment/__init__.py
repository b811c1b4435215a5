"""One federation over several sites' machines: who is there, what sites do and what the server does."""
