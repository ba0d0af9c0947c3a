from holdfast.tools.files import file_tools as file_tools
from holdfast.tools.mcp import McpServer as McpServer
from holdfast.tools.mcp import mcp_http as mcp_http
from holdfast.tools.mcp import mcp_stdio as mcp_stdio
from holdfast.tools.shell import shell_tool as shell_tool
