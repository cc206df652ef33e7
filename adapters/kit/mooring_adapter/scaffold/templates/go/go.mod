module example-app-adapter

go 1.19
