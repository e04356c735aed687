"""Raw rows → ClientData: the first step of the flow."""
