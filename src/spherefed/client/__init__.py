"""Work done where the data is: a client is one function of a request and its own state."""
