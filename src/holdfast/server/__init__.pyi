from holdfast.server.uvicorn_server import serve as serve
