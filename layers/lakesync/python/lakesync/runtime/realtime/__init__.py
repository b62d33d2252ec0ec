"""WebSockets: who connects, what they send, and what they are sent."""
