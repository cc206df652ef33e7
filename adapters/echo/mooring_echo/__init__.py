"""The echo adapter: the smallest complete example of an adapter, for an app with three roles."""
