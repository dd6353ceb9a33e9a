"""The one page of the project."""

from django.http import HttpRequest, HttpResponse
from django.urls import path


def _hello(_request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


urlpatterns = [path("", _hello)]
