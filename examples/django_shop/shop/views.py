"""The pages of the shop."""

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from shop.models import Order
from shop.tasks import confirm


@csrf_exempt
@require_POST
@transaction.atomic
def place(request: HttpRequest) -> JsonResponse:
    """Take an order. The order and its task are committed together, or not at all."""
    order = Order.objects.create(email=request.POST["email"])
    result = confirm.enqueue(order.pk)
    return JsonResponse({"order": order.pk, "task": result.id})
