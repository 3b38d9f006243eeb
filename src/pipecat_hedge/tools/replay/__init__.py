"""A caller made of recordings: calls a bot over WebRTC, speaks, and hears how long it takes."""
