"""The echo adapter: the smallest complete example of an adapter, with three roles."""
