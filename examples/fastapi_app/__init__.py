"""A chat with an agent in the browser: FastAPI, a page in plain HTML, and runs that survive the server.

    cd examples && python -m fastapi_app --pace 1

Ask for a refund of order 17. The answer comes word by word, and before any money moves, the page asks you. Kill the
server at any moment (kill -9) and start it again: the run continues, and so does the page, without a reload.
"""
