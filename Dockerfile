# Tenax with the page, the chat apps and the PostgreSQL driver. docs/how-to/run-as-a-service.md says how to use it.

FROM node:22-bookworm-slim AS page
WORKDIR /build/ui
COPY ui/package.json ui/package-lock.json ./
RUN npm ci --no-audit --no-fund
COPY ui/ ./
RUN npm run build

FROM python:3.13-slim-bookworm AS package
WORKDIR /build
COPY requirements/ requirements/
RUN python -m venv /opt/tenax \
 && /opt/tenax/bin/pip install --no-cache-dir --require-hashes -r requirements/run.txt \
 && /opt/tenax/bin/pip install --no-cache-dir --require-hashes -r requirements/postgres.txt \
 && pip install --no-cache-dir --require-hashes -r requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY src/ src/
COPY --from=page /build/src/tenax/web/page/ src/tenax/web/page/
RUN python -m build --wheel --no-isolation \
 && /opt/tenax/bin/pip install --no-cache-dir --no-deps dist/*.whl

FROM python:3.13-slim-bookworm
# bubblewrap: the sandbox of commands. Where the container may not make user namespaces, Tenax asks before every command.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends bubblewrap git \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 1000 --create-home tenax \
 && install --directory --owner=tenax --group=tenax --mode=700 /data
COPY --from=package /opt/tenax/ /opt/tenax/
# Inside, the server listens on every address of the container. Publish the port on 127.0.0.1 only, or through a proxy.
ENV PATH=/opt/tenax/bin:/usr/local/bin:/usr/bin:/bin TENAX_HOME=/data TENAX_HOST=0.0.0.0 TENAX_PORT=8629
USER tenax
WORKDIR /data
VOLUME /data
EXPOSE 8629
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
 CMD ["python", "-c", "from http.client import *; c = HTTPConnection('127.0.0.1', 8629, timeout=4); c.request('GET', '/api/health'); exit(c.getresponse().status != 200)"]
ENTRYPOINT ["tenax"]
CMD ["serve", "--no-link"]
