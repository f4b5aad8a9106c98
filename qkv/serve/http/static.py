"""Static files: the web page at `/`, its files below /static, and /docs, rendered from the OpenAPI schema.

Everything is read when the server starts: no name from a request reaches the file system, nothing is fetched from elsewhere.
"""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.responses import HTMLResponse, Response

from qkv.serve.http.errors import ApiError

PAGE = Path(__file__).parents[1] / "page"
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
         ".svg": "image/svg+xml"}  # fmt: skip
NO_CACHE = {"Cache-Control": "no-cache"}
STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; background: Canvas; color: CanvasText }
code, pre { font-family: ui-monospace, monospace; font-size: .9em }
pre { overflow-x: auto; padding: .75rem; border: 1px solid #8884; border-radius: .4rem }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #8884 }
h3 code { padding: .1rem .4rem; border: 1px solid #8884; border-radius: .3rem }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0 }
"""


def load_files() -> dict[str, Response]:
    """Read every file of the page with a known media type, by its path below the folder."""
    paths = {path.relative_to(PAGE).as_posix(): path for path in PAGE.rglob("*") if path.suffix in TYPES}
    return {name: Response(path.read_bytes(), 200, NO_CACHE, TYPES[path.suffix]) for name, path in paths.items()}


def router(app: FastAPI) -> APIRouter:
    routes, files = APIRouter(include_in_schema=False), load_files()

    @routes.get("/")
    async def index() -> Response:
        return files["index.html"]

    @routes.get("/static/{name:path}")
    async def static(name: str) -> Response:
        if name not in files:
            raise ApiError(404, "there is no such file")
        return files[name]

    @routes.get("/favicon.ico")
    async def icon() -> Response:
        return files["favicon.svg"]

    @routes.get("/docs")
    async def docs() -> Response:
        return HTMLResponse(render_docs(app.openapi()))

    @routes.get("/docs/style.css")
    async def style() -> Response:
        return Response(STYLE, media_type=TYPES[".css"])

    return routes


# --- /docs


def render_docs(schema: dict[str, Any]) -> str:
    """Render the API reference: every route and its fields."""
    groups: dict[str, list[str]] = {}
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            tag = (operation.get("tags") or ["Server"])[0]
            groups.setdefault(tag, []).append(render_route(path, method, operation, schema))
    body = "".join(f"<h2>{html.escape(tag)}</h2>{''.join(routes)}" for tag, routes in groups.items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<title>{html.escape(schema["info"]["title"])}</title><link rel="stylesheet" href="/docs/style.css"></head><body>'
        f"<main><h1>{html.escape(schema['info']['title'])}</h1><p>{html.escape(schema['info'].get('description', ''))} "
        f'OpenAPI schema: <a href="/openapi.json">openapi.json</a>.</p>{body}</main></body></html>'
    )


def render_route(path: str, method: str, operation: dict[str, Any], schema: dict[str, Any]) -> str:
    about = html.escape(operation.get("description", ""))
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    rows = [(one["name"], one["schema"], one.get("required", False)) for one in operation.get("parameters", ())]
    record = schema["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]] if content else {}
    required_fields = record.get("required", ())
    rows += [(name, field, name in required_fields) for name, field in record.get("properties", {}).items()]
    table = "".join(render_field(name, field, required) for name, field, required in rows)
    fields = f"<table><tr><th>field</th><th>type</th><th>description</th></tr>{table}</table>" if rows else ""
    return f"<h3><code>{method.upper()} {html.escape(path)}</code></h3><p>{about}</p>{fields}"


def render_field(name: str, field: dict[str, Any], required: bool) -> str:
    about = field.get("description", "")
    default = "" if required or field.get("default") is None else f" Default: {field['default']!r}."
    cells = (f"<code>{html.escape(name)}</code>{'' if required else ' ?'}", html.escape(type_name(field)),
             html.escape(about + default))  # fmt: skip
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def type_name(field: dict[str, Any]) -> str:
    """Name the type of a schema field."""
    if "$ref" in field:
        return str(field["$ref"].rpartition("/")[2])
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(type_name(each) for each in field["anyOf"] if each.get("type") != "null"))
    if "enum" in field or "const" in field:
        return " or ".join(f'"{each}"' for each in field.get("enum", [field.get("const")]))
    if field.get("type") == "array":
        return f"list of {type_name(field.get('items', {}))}"
    return str(field.get("type", "any"))
