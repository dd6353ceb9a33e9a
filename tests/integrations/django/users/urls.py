"""The URLs of the project: one page of its own, and the dashboard."""

from django.http import HttpRequest, HttpResponse
from django.urls import path

from duly.integrations.django.dashboard import dashboard_urls


def _hello(_request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


urlpatterns = [path("duly/", dashboard_urls()), path("", _hello)]
