"""Engine: runs the client half and the server half of a method, round by round."""
